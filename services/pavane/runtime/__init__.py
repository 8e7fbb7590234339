"""The life of a process: settings, signals, supervised tasks, ops port, names, stop."""
