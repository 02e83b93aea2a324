"""What a trained model answers: how sure it is, what to decide, learn, annotate and doubt."""
