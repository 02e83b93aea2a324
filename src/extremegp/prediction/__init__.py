"""The predictive distribution of a trained model, known labels, and approximate search for the best ones."""
