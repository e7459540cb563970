"""What a person or make runs to write pages, pictures, scores and statements. The package imports none of it."""
