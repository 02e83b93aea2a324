"""From what a user asks for to what is built and trained: settings, names of parts, and the memory that they take."""
