"""The life of files against a model: whatever they are called, every row is read once, in order.

The model knows which file is which; the function under test sees names, inodes, times and, where it
asks, content.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millrace.sources import entries as entries_module
from millrace.sources.content import CHAIN_START, mark_at
from millrace.sources.entries import FileEntry, ReadState, decode_state
from millrace.sources.identity import Change, Fate, Seen, match
from millrace.sources.listing import FileStat

NAMES = [f"{letter}.log{end}" for letter in "ab" for end in ("", ".1", ".2", ".3")]
HIDDEN = ["_a", "_b", "_c"]
"""Names that are not read: what is known is found there, and nothing is new."""

ROWS = st.text("xyz", min_size=1, max_size=6) | st.text("x", min_size=1, max_size=3)
"""Of any content, or of one that others begin with."""


@dataclass(eq=False)
class ModelFile:
    """A file as it is: ``rows`` are one byte each; one that is ``barred`` cannot be opened."""

    inode: int
    birth: int
    rows: bytes
    modified: int
    changed: int
    barred: bool = False


@dataclass
class ModelEvidence:
    """Answers from the model, whatever the digests say."""

    files: dict[str, ModelFile]
    consumed: dict[int, bytes]
    births: bool
    asked: int = 0

    def birth(self, path: str) -> int:
        return self.files[path].birth if self.births else 0

    def born_ns(self, path: str) -> int:
        return self.birth(path)

    def begins(self, path: str, entries: Sequence[FileEntry]) -> Collection[int]:
        self.asked += len(entries)
        rows = self.files[path].rows if not self.refused(path) else b""
        return {e.id for e in entries if rows.startswith(self.consumed[e.id])}

    def beginnings(self, path: str, lengths: Collection[int]) -> Mapping[int, bytes]:
        self.asked += len(lengths)
        rows = self.files[path].rows if not self.refused(path) else b""
        return {n: mark_at(n, CHAIN_START, rows[:n]).digest for n in lengths if n <= len(rows)}

    def refused(self, path: str) -> bool:
        return path in self.files and self.files[path].barred


@dataclass
class Reader:
    """Looks and reads as the source does, by the function's answers alone."""

    births: bool
    state: ReadState = field(default_factory=ReadState)
    consumed: dict[int, bytes] = field(default_factory=dict)
    shown: list[tuple[int, bytes]] = field(default_factory=list)
    of_entry: dict[int, list[ModelFile]] = field(default_factory=dict)
    waiting: dict[str, ModelFile] = field(default_factory=dict)
    waited: dict[str, FileStat] = field(default_factory=dict)

    def fates(
        self, files: dict[str, ModelFile]
    ) -> tuple[dict[int, Fate], tuple[str, ...], tuple[str, ...], int]:
        evidence = ModelEvidence(files, self.consumed, self.births)
        listing = {p: stat_of(f) for p, f in sorted(files.items()) if p in NAMES}

        def around(paths: Collection[str]) -> Mapping[str, FileStat]:
            return {path: stat_of(file) for path, file in files.items()}

        seen = Seen(self.state.files, self.state.gone, self.waited)
        found = match(seen, listing, around, evidence)
        return dict(found.fates), found.new, found.lost, evidence.asked

    def look(self, files: dict[str, ModelFile], limit: int) -> tuple[str, ...]:
        """One look and one plan of at most ``limit`` rows; files that waited and are lost."""
        fates, new, lost, _ = self.fates(files)
        changed: dict[int, FileEntry] = {}
        gone = set(self.state.gone)
        for number, fate in fates.items():
            assert fate.change is not Change.REPLACED
            if fate.change is Change.GONE:
                assert not self.state.files[number].unread
                gone.add(number)
                continue
            gone.discard(number)
            file = files[fate.path]
            assert (fate.change is Change.BARRED) is (file.barred and not fate.at_rest)
            if file.barred:
                changed[number] = replace(self.state.files[number], path=fate.path)
                continue
            entry = self.state.files[number].seen(fate.path, stat_of(file), file.birth)
            changed[number], limit = self._read(entry, file, limit)
        for number, path in enumerate(new, self.state.next):
            if limit and files[path].rows and not files[path].barred:
                entry = FileEntry(number, path).seen(path, stat_of(files[path]), files[path].birth)
                changed[number], limit = self._read(entry, files[path], limit)
        begun = {e.path for e in changed.values()}
        self.waiting = {p: files[p] for p in new if p not in begun}
        self.waited = {path: stat_of(file) for path, file in self.waiting.items()}
        kept = {n: e for n, e in changed.items() if e != self.state.files.get(n)}
        self.state = self.state.with_entries(kept, frozenset(gone))
        return lost

    def _read(self, entry: FileEntry, file: ModelFile, limit: int) -> tuple[FileEntry, int]:
        start = entry.mark.position
        rows = file.rows[start : start + limit]
        end = start + len(rows)
        self.shown += [(entry.id, file.rows[i : i + 1]) for i in range(start, end)]
        self.consumed[entry.id] = file.rows[:end]
        self.of_entry.setdefault(entry.id, []).append(file)
        entry = replace(
            entry,
            mark=mark_at(end, CHAIN_START, file.rows[:end]) if end else entry.mark,
            records=end,
            size=len(file.rows),
            unread=len(file.rows) - end,
            birth=file.birth if self.births else 0,
        )
        return entry, limit - len(rows)


def stat_of(file: ModelFile) -> FileStat:
    return FileStat(len(file.rows), file.inode, file.modified, file.changed, 1)


class FilesLive(RuleBasedStateMachine):
    """What programs do to log files between two looks; ``births`` says whether files have one."""

    births = True

    def __init__(self) -> None:
        super().__init__()
        self.files: dict[str, ModelFile] = {}
        self.away: dict[str, ModelFile] = {}
        self.free_inodes: list[int] = []
        self.every: list[ModelFile] = []
        self.clock = 0
        self.next_inode = 10
        self.reader = Reader(self.births)
        self.removed_since_look: list[ModelFile] = []
        self.settling: list[ModelFile] = []
        self.replaced: list[ModelFile] = []

    @initialize()
    def start(self) -> None:
        self.create("a.log", b"xy", False)
        self.create("b.log", b"x", False)

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    # -- what happens to files

    @rule(
        name=st.sampled_from(NAMES),
        rows=ROWS.map(str.encode),
        reuse=st.booleans(),
    )
    def create(self, name: str, rows: bytes, reuse: bool) -> None:
        """A new file, also with the content of another, also with the inode of one that went."""
        if name in self.files or name in self.away:
            return
        if self._replaces(name) or self._equals_a_copy(rows):
            return
        if reuse and self.free_inodes:
            inode = self.free_inodes.pop()
        else:
            inode, self.next_inode = self.next_inode, self.next_inode + 1
        now = self.tick()
        file = ModelFile(inode, now, rows, now, now)
        self.files[name] = file
        self.every.append(file)

    def _replaces(self, name: str) -> bool:
        """A file went and another content takes its name between two looks: that is an error."""
        return any(self._entry(f).path == name for f in self.removed_since_look)

    def _equals_a_copy(self, rows: bytes) -> bool:
        """Whether an unread file could be taken for the copy of one that was truncated just now,
        or the truncated one for what it was.
        """
        files = [f for f in self.settling if self._progress(f) and f not in self.replaced]
        return any(rows.startswith(f.rows[: self._progress(f)]) for f in files)

    def _is_lost(self, name: str, file: ModelFile, rows: bytes) -> bool:
        """Whether a file that is copied here counts as one that the name had: its own is refused
        then.
        """
        copied = file in self.settling and self._progress(file) and file not in self.replaced
        return bool(copied and self._entry(file).path != name and self._come_back(name, rows))

    def _entry(self, file: ModelFile) -> FileEntry:
        return next(
            self.reader.state.files[n]
            for n, files in reversed(self.reader.of_entry.items())
            if files[-1] is file
        )

    def _come_back(self, name: str, rows: bytes) -> list[FileEntry]:
        """What was known under this name and begins a file: that counts as the one of these."""
        known = self.reader.state.files.values()
        return [e for e in known if e.path == name and rows.startswith(self.reader.consumed[e.id])]

    def _tell_apart(self) -> None:
        """New files that are documented to be taken for another one.

        One that has the name of a removed one, and begins with all that was read of that, is that
        one from now on. Others begin differently: such as have the name of one that is there or
        may come back, and such as came since the last look, when an equal one went; but for those
        that have its inode where files have births. Where they have none, one with the inode of a
        file that went, which begins as that did, is that one, grown.
        """
        known = self.reader.state
        live = [f[-1] for n, f in self.reader.of_entry.items() if n not in known.gone]
        went = [f for f in live if f not in self.files.values()]
        for name, file in self.files.items():
            if file.rows and not self._progress(file):
                equal = [f for f in went if f.rows == file.rows]
                taken = any(not self.births or f.inode != file.inode for f in equal)
                taken |= not self.births and any(
                    f.inode == file.inode and file.rows.startswith(f.rows[: self._progress(f)])
                    for f in went
                )
                heirs = self._come_back(name, file.rows)
                removed = [self.reader.of_entry[e.id][-1] for e in heirs if e.id in known.gone]
                there = (*self.files.values(), *self.away.values())
                if not taken and len(heirs) == len(removed) == 1 and removed[0] not in there:
                    self._is(removed[0], file)
                elif taken or heirs:
                    file.rows = b"%d!" % self.tick() + file.rows

    def _is(self, old: ModelFile, file: ModelFile) -> None:
        """What was read of a removed file is not read again of the one that is taken for it."""
        if file in self.every:
            self.every.remove(file)
        self.every[self.every.index(old)] = file
        for files in self.reader.of_entry.values():
            files[:] = [file if f is old else f for f in files]

    @rule(more=st.text("xyz", max_size=3).map(str.encode), reuse=st.booleans(), data=st.data())
    @precondition(lambda self: self.reader.state.gone)
    def recreate(self, more: bytes, reuse: bool, data: st.DataObject) -> None:
        """A file that begins as a removed one did, under the name of that."""
        number = data.draw(st.sampled_from(sorted(self.reader.state.gone)))
        path = self.reader.state.files[number].path
        self.create(path, self.reader.consumed[number] + more, reuse)

    @rule(rows=st.text("xyz", min_size=1, max_size=4).map(str.encode), data=st.data())
    @precondition(lambda self: self.files)
    def append(self, rows: bytes, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.files)))
        file = self.files[name]
        grown = file.rows + rows
        if self._is_lost(name, file, grown):
            return
        if not self._progress(file) and self._equals_a_copy(grown):
            return
        file.rows += rows
        file.modified = file.changed = self.tick()

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def touch(self, data: st.DataObject) -> None:
        file = self.files[data.draw(st.sampled_from(sorted(self.files)))]
        file.modified = file.changed = self.tick()

    @rule(new=st.sampled_from(NAMES + HIDDEN), data=st.data())
    @precondition(lambda self: self.files)
    def rename(self, new: str, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(sorted(self.files)))
        if new in self.files or new in self.away:
            return
        self._move({old: new})

    @rule(data=st.data())
    @precondition(lambda self: len(self.files) > 1)
    def permute(self, data: st.DataObject) -> None:
        """Chains and swaps of any length, at once."""
        names = sorted(self.files)
        order = data.draw(st.permutations(names))
        self._move(dict(zip(names, order, strict=True)))

    @rule(letter=st.sampled_from("ab"), rows=st.text("xyz", min_size=1, max_size=4))
    def rotate(self, letter: str, rows: str) -> None:
        """a.log → a.log.1 → a.log.2 …, the oldest is written over, and a new a.log begins."""
        chain = [name for name in NAMES if name[0] == letter]
        if any(name in self.away for name in chain):
            return
        oldest = self.files.get(chain[-1])
        if oldest is not None:
            if chain[-1] not in self._done():
                return
            self._remove(chain[-1])
        for old, new in zip(chain[-2::-1], chain[:0:-1], strict=True):
            if old in self.files and new not in self.files:
                self._move({old: new})
        self.create(chain[0], rows.encode(), False)

    def _move(self, names: dict[str, str]) -> None:
        moved = {new: self.files[old] for old, new in names.items()}
        if any(file in self.replaced for file in moved.values()):
            return  # a copy is known by its name alone
        if any(self._is_lost(new, file, file.rows) for new, file in moved.items()):
            return
        if any(self._replaces(new) and not self._is_known(f) for new, f in moved.items()):
            return
        # Without births one that was truncated or came back is known by its name alone.
        if not self.births and any(f in self.settling or self._waits(f) for f in moved.values()):
            return
        if not all(self._may_hide(f, new) for new, f in moved.items() if new in HIDDEN):
            return
        for old in names:
            del self.files[old]
        self.files.update(moved)
        for new, file in moved.items():
            if names.get(new) != new:
                file.changed = self.tick()

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def remove(self, data: st.DataObject) -> None:
        """Only what was read to its end may be taken away."""
        done = self._done()
        if done:
            self._remove(data.draw(st.sampled_from(done)))

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def bar(self, data: st.DataObject) -> None:
        """A file cannot be read for a while; without births one that was begun."""
        file = self.files[data.draw(st.sampled_from(sorted(self.files)))]
        may = self._progress(file) or self.births
        if file.barred or (may and file not in self.settling):
            file.barred = not file.barred
            file.changed = self.tick()

    def _waits(self, file: ModelFile) -> bool:
        return file in self.reader.waiting.values()

    def _is_known(self, file: ModelFile) -> bool:
        """Whether it was begun, or was seen and is whole."""
        return bool(self._progress(file)) or (self._waits(file) and file not in self.settling)

    def _may_hide(self, file: ModelFile, name: str) -> bool:
        """What is known is found behind any name, but who went from there is not looked for."""
        state = self.reader.state
        if any(state.files[number].path == name for number in state.gone):
            return False
        if self._progress(file):
            return self._entry(file).id not in state.gone
        return self._waits(file) and file not in self.settling

    @rule(left=st.sampled_from([None, 0, 1]), data=st.data())
    @precondition(lambda self: any(self._waits(file) for file in self.files.values()))
    def spoil(self, left: int | None, data: st.DataObject) -> None:
        """A file of which nothing was read is removed or cut off."""
        waiting = sorted(name for name, file in self.files.items() if self._waits(file))
        name = data.draw(st.sampled_from(waiting))
        file = self.files[name]
        if left is None:
            del self.files[name]
            self.free_inodes.append(file.inode)
            self.every.remove(file)
        elif len(file.rows) > left and name in NAMES and not self._replaces(name):
            file.rows = file.rows[:left]
            file.modified = file.changed = self.tick()
            self.settling.append(file)

    def _done(self) -> list[str]:
        """Files that were read to their end under the names that they have now.

        Who renames one and takes it away between two looks leaves no trace of its last rows.
        """
        return [
            name
            for name, file in sorted(self.files.items())
            if file not in self.settling and self._finished(file) and self._entry(file).path == name
            if name in NAMES
        ]

    def _finished(self, file: ModelFile) -> bool:
        return self._progress(file) == len(file.rows) > 0

    def _progress(self, file: ModelFile) -> int:
        ids = [n for n, files in self.reader.of_entry.items() if files[-1] is file]
        return max((len(self.reader.consumed[n]) for n in ids), default=0)

    def _remove(self, name: str) -> None:
        file = self.files.pop(name)
        self.free_inodes.append(file.inode)
        self.removed_since_look.append(file)

    @rule(data=st.data())
    @precondition(lambda self: self.files)
    def take_away(self, data: st.DataObject) -> None:
        """A file leaves the folder; its inode stays its own."""
        done = [name for name in self._done() if not self.files[name].barred]
        if done:
            name = data.draw(st.sampled_from(done))
            self.away[name] = self.files.pop(name)

    @rule(rows=st.text("xyz", max_size=3).map(str.encode), elsewhere=st.booleans(), data=st.data())
    @precondition(lambda self: self.away)
    def bring_back(self, rows: bytes, elsewhere: bool, data: st.DataObject) -> None:
        """It comes back, perhaps longer; the same inode proves another name where births do."""
        old = data.draw(st.sampled_from(sorted(self.away)))
        new = data.draw(st.sampled_from(NAMES)) if elsewhere and self.births else old
        if new in self.files or (new in self.away and new != old) or self._replaces(new):
            return
        file = self.away.pop(old)
        file.rows += rows
        file.changed = self.tick()
        if rows:
            file.modified = file.changed
        self.files[new] = file
        self.settling.append(file)

    @rule(data=st.data())
    @precondition(lambda self: self._at_their_names())
    def replace(self, data: st.DataObject) -> None:
        """A copy, perhaps longer, takes a file's place at once, also with what another one held."""
        name = data.draw(st.sampled_from(self._at_their_names()))
        rows = self.files[name].rows
        known = {r for r in self.reader.consumed.values() if r.startswith(rows)} - {rows}
        self._replace(name, data.draw(st.sampled_from([*sorted(known), rows, rows + b"z"])))

    @rule(data=st.data())
    @precondition(lambda self: self._at_their_names())
    def mirror(self, data: st.DataObject) -> None:
        """A file goes, and a copy of it takes the place of one that it began with."""
        pairs = [
            (name, other)
            for name in self._at_their_names()
            for other in self._done()
            if other != name and self.files[other].rows.startswith(self.files[name].rows)
        ]
        if pairs:
            name, other = data.draw(st.sampled_from(pairs))
            if self._replace(name, self.files[other].rows):
                self._remove(other)

    def _at_their_names(self) -> list[str]:
        """Files that were begun, may be read, and are where they were at the last look."""
        names = sorted(name for name, file in self.files.items() if self._progress(file))
        may = [name for name in names if not self.files[name].barred]
        return [name for name in may if self._entry(self.files[name]).path == name]

    def _replace(self, name: str, rows: bytes) -> bool:
        """The copy of one that came back is told only if it begins with nothing else of its name;
        of any other one it always is, whatever it begins with.
        """
        file = self.files[name]
        entry, gone = self._entry(file), self.reader.state.gone
        if entry.id in gone and self._come_back(name, rows) != [entry]:
            return False
        inode, self.next_inode = self.next_inode, self.next_inode + 1
        now = self.tick()
        copy = ModelFile(inode, now, rows, now, now)
        self.files[name] = copy
        self.settling.append(copy)
        self.replaced.append(copy)
        self._is(file, copy)
        return True

    @rule(name=st.sampled_from(NAMES + HIDDEN), data=st.data())
    @precondition(lambda self: self.files)
    def copy_and_truncate(self, name: str, data: st.DataObject) -> None:
        """The old content stands in another file, and the name begins anew, empty."""
        old = data.draw(st.sampled_from(sorted(self.files)))
        file = self.files[old]
        if file.barred or old in HIDDEN or (name in HIDDEN and not self._may_hide(file, name)):
            return
        free = name not in self.files and name not in self.away and not self._replaces(name)
        came_back = self._progress(file) and self._entry(file).id in self.reader.state.gone
        if file in self.settling or came_back or self._replaces(old):
            return
        if not self.births and self._progress(file) and self._entry(file).path != old:
            return
        if not free or not self._progress(file) or self._equals_elsewhere(file):
            return
        if self._come_back(name, file.rows):
            return  # it is taken for one that had its name, and what was truncated is refused
        inode, self.next_inode = self.next_inode, self.next_inode + 1
        now = self.tick()
        copy = ModelFile(inode, now, file.rows, now, now)
        self.files[name] = copy
        rest = ModelFile(file.inode, file.birth, b"", now, now)
        self.files[old] = rest
        self.settling += [copy, rest]
        self.every.append(rest)
        self.every[self.every.index(file)] = copy
        for files in self.reader.of_entry.values():
            files[:] = [copy if f is file else f for f in files]

    def _equals_elsewhere(self, file: ModelFile) -> bool:
        """Whether some other file could be taken for the copy."""
        read = file.rows[: self._progress(file)]
        others = [f for f in self.files.values() if f is not file]
        return any(f.rows.startswith(read) for f in others)

    # -- looks

    @rule(limit=st.sampled_from([0, 1, 2, 100, 100]), restart=st.booleans())
    def look(self, limit: int, restart: bool) -> None:
        if restart:
            stored = json.loads(json.dumps(self.reader.state.encode()))
            assert decode_state(stored) == self.reader.state
            self.reader.state = decode_state(stored)
        self._look(limit)

    def _look(self, limit: int) -> None:
        self._tell_apart()
        before, stats = self.reader.waiting, self.reader.waited
        lost = set(self.reader.look(self.files, limit))
        self.removed_since_look = []
        self.settling = []
        self.replaced = []
        inodes = {f.inode for f in self.files.values()}
        for path, file in before.items():
            whole = file in self.files.values() and len(file.rows) >= stats[path].size
            if self.births or whole or file.inode not in inodes:
                assert (path in lost) is not whole

    @rule()
    def look_twice(self) -> None:
        """The same offsets give the same answer, and at rest nothing is opened a second time."""
        self._look(0)
        first = self.reader.fates(self.files)
        assert first == self.reader.fates(self.files)
        live = [n for n in first[0] if n not in self.reader.state.gone]
        rest = (Change.SAME, Change.GROWN, Change.BARRED)
        assert all(first[0][n].change in rest for n in live)

    @invariant()
    def every_entry_is_one_file(self) -> None:
        """Rows of one entry came from one content, each place of it once and in order."""
        rows: dict[int, bytes] = {}
        for number, row in self.reader.shown:
            rows[number] = rows.get(number, b"") + row
        assert rows == {n: read for n, read in self.reader.consumed.items() if read}

    def teardown(self) -> None:
        """In the end every row of every file that was ever there was read once."""
        for name, file in list(self.away.items()):
            if name not in self.files:
                file.changed = self.tick()
                self.files[name] = file
        for file in self.files.values():
            file.changed = self.tick() if file.barred else file.changed
            file.barred = False
        self._look(100_000)
        due = Counter(file.rows for file in self.every if file.rows)
        found = Counter(read for read in self.reader.consumed.values() if read)
        assert found == due


class FilesLiveWithoutBirths(FilesLive):
    """The same where the file system does not say when a file was made."""

    births = False


class SmallPacks(FilesLive):
    """The same with entries that are packed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = entries_module.LOOSE_FILES, entries_module.PACK_FILES
        entries_module.LOOSE_FILES, entries_module.PACK_FILES = 1, 3

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            entries_module.LOOSE_FILES, entries_module.PACK_FILES = self.kept


# The same lives each time: a life that the model has no word for must not fail somebody else's run.
_SETTINGS = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    report_multiple_bugs=False,
)

TestFilesLive = FilesLive.TestCase
TestFilesLive.settings = _SETTINGS
TestFilesLiveWithoutBirths = FilesLiveWithoutBirths.TestCase
TestFilesLiveWithoutBirths.settings = _SETTINGS
TestSmallPacks = SmallPacks.TestCase
TestSmallPacks.settings = _SETTINGS
