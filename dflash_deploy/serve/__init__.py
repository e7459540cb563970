"""What runs in the engine's process or beside it: settings become arguments, and the engine starts with them.

The image's entry point and the native runtime both use it, so that an engine is described once. It imports only the
standard library and itself, since the image contains nothing else of this package.
"""
