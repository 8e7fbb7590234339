"""Tables and rules without I/O: members, precedence, news, tokens, envelopes."""
