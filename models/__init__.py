"""Models that belong to the project itself: the tiny demo pair and how it was trained."""
