"""Settings of a program from its environment."""

from typing import Self

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsError(Exception):
    """A setting is missing or wrong; the message names each variable and what is wrong with it."""


class Settings(BaseSettings):
    """Base of all settings: field ``raft_url`` is read from ``PAVANE_RAFT_URL`` unless it names an alias."""

    model_config = SettingsConfigDict(env_prefix="PAVANE_", frozen=True, extra="ignore", populate_by_name=True)

    @classmethod
    def load(cls) -> Self:
        """Read the environment. Raises ``SettingsError`` with one line per variable that is missing or wrong."""
        try:
            return cls()
        except ValidationError as error:
            lines = [f"{cls._variable(str(fault['loc'][0]))}: {fault['msg']}" for fault in error.errors()]
            raise SettingsError("; ".join(lines)) from None

    @classmethod
    def _variable(cls, location: str) -> str:
        return location if location.isupper() else f"{cls.model_config.get('env_prefix', '')}{location}".upper()
