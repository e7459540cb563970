"""The checks of `test`: does the endpoint answer correctly, with accepted drafts, and only with the API key?"""
