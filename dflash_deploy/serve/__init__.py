"""What runs beside the engine: settings become arguments, and the engine is started with them.

Used by the image's entry point and by the native runtime, so that an engine is described once. It stands alone: the
standard library only, since the image holds nothing else of this package.
"""
