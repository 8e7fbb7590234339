"""Parts that a core of any protocol is built of. They are pure: time is an argument, randomness is handed in."""
