"""The declared topology: its model, how a file becomes one, and what follows from it.

``load`` turns a file into a checked topology: ``document`` reads YAML, ``model`` says what a
field may hold, ``explain`` words what is wrong with one, ``check`` what is wrong between them.
``graph`` answers questions about the DAG and its passes, ``edits`` what a change of the file
means for a topology that has run, ``schema`` exports the format.
"""
