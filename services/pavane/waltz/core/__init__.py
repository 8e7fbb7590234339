"""State machines of Waltz: no clock, no socket; events go in, what is to be done comes out."""
