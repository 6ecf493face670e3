"""The extension modules: the C++ runtime as Python sees it."""
