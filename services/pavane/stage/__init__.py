"""The staged life of a pod over the compute protocol, both ends (docs/specs/compute.md 2, 6).

``table`` says what every command means at every point of a stream, ``core`` keeps the epochs, the stage and the token
without doing I/O, ``server`` serves both for a pod's ``Role``, ``client`` drives the stream from the operator's side.
"""
