"""What a Ray cluster does under load while parts of it die: the figures of docs/how-to/run-on-ray.md."""
