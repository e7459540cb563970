"""Several machines from one terminal: `fleet.yaml`, SSH, and what a host needs before an engine starts on it."""
