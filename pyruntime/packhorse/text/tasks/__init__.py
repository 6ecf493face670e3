"""The tasks of `TextModel` besides generation, a file each."""
