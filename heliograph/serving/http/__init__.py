"""The HTTP application: routes, fairness, the operator's page."""
