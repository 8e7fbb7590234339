"""What all bodies of the REST API have in common."""

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class Document(BaseModel):
    """camelCase outside, snake_case inside."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, use_attribute_docstrings=True)


class StrictDocument(Document):
    """One that refuses unknown fields: a misspelt condition would be none."""

    model_config = ConfigDict(extra="forbid")
