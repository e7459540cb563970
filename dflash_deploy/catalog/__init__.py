"""Facts about hardware, models and engines, as YAML. The schema describes each field."""
