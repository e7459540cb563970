"""The deployment directory: `.env`, `compose.yaml`, `.dflash/`. It is the only state."""
