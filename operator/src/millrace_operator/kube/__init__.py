"""The Kubernetes API: objects read into what a plan is made of, and actions carried out.

Only this package knows a client of the API.
"""
