"""Late binding: what makes a warm worker run this job. Pickles, the caller's code, environment.

Used on both sides of a call, by clients and by workers. Ray is never imported here.
"""
