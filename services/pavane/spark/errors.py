"""What goes wrong between Spark and the log, in words that reach the user through Spark's own error."""


class WaltzSourceError(Exception):
    """Base of all errors of the format `waltz`."""


class OptionError(WaltzSourceError, ValueError):
    """An option, a schema or a way of writing that the format does not offer."""


class DataLossError(WaltzSourceError):
    """The log no longer holds what a query has to read next."""


class MalformedRecordError(WaltzSourceError):
    """A record that does not fit the schema, in mode FAILFAST, or a row that cannot be written."""


class ChainError(WaltzSourceError):
    """A chain whose entries contradict each other, or that cannot be continued."""
