"""Snapshots: what a topology knew behind one sealed window, in a folder or an object store.

::

    <place>/<name>/<digest>.arrow     a state object, an Arrow IPC stream, byte for byte
    <place>/<name>/<digest>.letters   an object of dead letters
    <place>/<name>/manifest.json      the record of the window, and every part with its digest

The manifest is created last, exclusively where the place can do that, and a folder without one is
no snapshot. Parts are called by the digest of their content, so that two who write the same
snapshot, one of them an old driver that wakes up, never write different bytes under one name.
Somebody may delete what has no manifest yet, so who creates it looks before and behind whether
every part is there, and who deletes takes a manifest away behind the parts that has come meanwhile.

=============================  =================================================================
the process dies               what is left
=============================  =================================================================
while parts are written        a folder without a manifest, which nobody restores; the same
                               snapshot is taken again by the next driver, or the folder deleted
                               before the next one that a topology takes by itself
after the manifest             the snapshot; who asked for it finds it, and parts that it does
                               not name are deleted when it is deleted
while it is deleted            the manifest goes first: a folder without one
=============================  =================================================================
"""
