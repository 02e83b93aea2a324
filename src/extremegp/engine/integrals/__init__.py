"""Gaussian expectations: of the logistic and the normal distribution function, of log-sum-exp, of who is highest."""
