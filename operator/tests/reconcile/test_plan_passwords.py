"""The topology's Secret: a password for each member before any pod needs it, and nobody who gets
in is locked out by another release of operator or pods."""

from __future__ import annotations

from hashlib import sha256

from memory_cluster import SETTINGS, Cluster, CrashError, moment, summary

from millrace.homes.passwords import of_root_key
from millrace_operator.reconcile.actions import FillSecret
from millrace_operator.reconcile.plan import plan

OF = of_root_key("r" * 48, "uid-1")
SHARED = "p" * 48


def held(cluster: Cluster) -> dict[str, str]:
    secrets = cluster.secrets()
    assert secrets is not None
    return dict(secrets.data)


def by_an_older_operator() -> Cluster:
    """A topology that runs, with the Secret that a release without roots made."""
    cluster = Cluster()
    cluster.settle()
    known = {key: None for key in held(cluster) if key != "run-key"}
    cluster.fill_secret(**{**known, "password": SHARED})
    return cluster


def gets_in(cluster: Cluster, server: str, password: str, user: str = "default") -> bool:
    """Whether a server of this release that mounts its own key takes a password."""
    own = held(cluster)[f"password-{server}"].split()
    known = f"{user} {sha256(password.encode()).hexdigest()}"
    mine = user == "default" and password in own
    return mine or known in held(cluster)["accepted"].splitlines()


def gets_into_older(cluster: Cluster, password: str) -> bool:
    """The same of a server of a release without roots, which mounts the key ``password``."""
    return password in held(cluster)["password"].splitlines()


def test_a_new_topology_has_all_passwords_before_any_pod():
    cluster = Cluster()
    words = summary(cluster.reconcile())
    assert words[0] == "create Secret words-secret"
    found = held(cluster)
    assert (found["root"], found["run-key"]) == ("r" * 48, "k" * 48)
    assert found["password-words-state-2"] == f"{OF('words-state-2')}\n"
    assert found["password-words-acker-63"] == f"{OF('words-acker-63')}\n"
    cluster.settle()
    assert cluster.reconcile() == ()


def test_servers_of_this_release_take_their_own_the_shared_one_and_ackers_as_ackers():
    cluster = Cluster()
    cluster.settle()
    own, other = OF("words-state-0"), OF("words-state-1")
    acker = OF("words-acker-1")
    assert gets_in(cluster, "words-state-0", own)
    assert not gets_in(cluster, "words-state-0", other)
    assert gets_in(cluster, "words-state-0", SHARED), "a driver of an older release"
    assert gets_in(cluster, "words-state-0", acker, "acker")
    assert not gets_in(cluster, "words-state-0", acker)
    assert not gets_in(cluster, "words-state-0", other, "acker")


def test_an_upgraded_operator_fills_the_secret_first_and_changes_nothing_that_was_there():
    cluster = by_an_older_operator()
    before = held(cluster)
    assert before == {"password": SHARED, "run-key": "k" * 48}
    made = cluster.reconcile()
    assert summary(made) == ["fill words-secret"], "no pod is made anew for it"
    after = held(cluster)
    assert after["password"].splitlines()[0] == SHARED
    assert after["run-key"] == before["run-key"]
    # Servers of the older release take what new drivers and ackers have; servers of this one what
    # the driver has that still runs.
    assert all(gets_into_older(cluster, OF(f"words-{one}")) for one in ("state-0", "acker-0"))
    assert gets_into_older(cluster, SHARED)
    assert gets_in(cluster, "words-state-0", SHARED)
    assert cluster.reconcile() == ()


def test_a_pod_that_an_older_operator_makes_behind_a_rollback_gets_in_and_lets_in():
    cluster = Cluster()
    cluster.settle()
    # It mounts the key ``password`` alone, and uses the first line; so does an older driver.
    used = held(cluster)["password"].splitlines()[0]
    assert gets_in(cluster, "words-state-0", used)
    assert all(
        gets_into_older(cluster, one) for one in (used, OF("words-state-9"), OF("words-acker-9"))
    )


def test_pods_that_die_with_the_operator_find_their_keys():
    cluster = by_an_older_operator()
    del cluster.pods["words-state-1"]
    words = summary(plan(cluster.observed(), SETTINGS, moment(cluster.now)).actions)
    assert words.index("fill words-secret") < words.index("create Pod words-state-1")
    for die_at in range(len(words)):
        cluster = by_an_older_operator()
        del cluster.pods["words-state-1"]
        try:
            cluster.reconcile(crash_after=die_at)
        except CrashError:
            made = "words-state-1" in cluster.pods
            assert not made or "password-words-state-1" in held(cluster)
        cluster.settle()
        assert held(cluster)["password-words-state-1"].strip() == OF("words-state-1")


def test_another_root_is_taken_beside_the_one_before_until_that_is_gone():
    cluster = Cluster()
    cluster.settle()
    new = of_root_key("n" * 48, "uid-1")
    cluster.fill_secret(root="n" * 48 + "\n" + "r" * 48 + "\n")
    assert summary(cluster.reconcile()) == ["fill words-secret"]
    for of in (new, OF):
        assert gets_in(cluster, "words-state-0", of("words-state-0"))
        assert gets_in(cluster, "words-state-0", of("words-acker-0"), "acker")
        assert gets_into_older(cluster, of("words-acker-0"))
    assert held(cluster)["password-words-state-0"].splitlines()[0] == new("words-state-0")
    cluster.fill_secret(root="n" * 48)
    assert summary(cluster.reconcile()) == ["fill words-secret"]
    assert gets_in(cluster, "words-state-0", new("words-state-0"))
    assert gets_in(cluster, "words-state-0", SHARED)
    for user in ("default", "acker"):
        assert not gets_in(cluster, "words-state-0", OF("words-state-0"), user)
        assert not gets_in(cluster, "words-state-0", OF("words-acker-0"), user)
    assert not gets_into_older(cluster, OF("words-acker-0"))
    assert cluster.reconcile() == ()


def test_a_shared_password_that_is_removed_stays_away():
    cluster = Cluster()
    cluster.settle()
    cluster.fill_secret(password=None)
    cluster.settle()
    assert "password" not in held(cluster)
    assert not gets_in(cluster, "words-state-0", SHARED)
    assert gets_in(cluster, "words-state-0", OF("words-state-0"))


def test_shared_passwords_that_are_being_changed_are_both_taken_until_the_old_one_is_gone():
    cluster = by_an_older_operator()
    new = "q" * 48
    cluster.fill_secret(password=f"{new}\n{SHARED}\n")
    cluster.settle()
    assert gets_in(cluster, "words-state-0", new)
    assert gets_in(cluster, "words-state-0", SHARED)
    text = held(cluster)["password"]
    assert text.splitlines()[:2] == [new, SHARED]
    cluster.fill_secret(password=text.replace(f"{SHARED}\n", ""))
    cluster.settle()
    assert gets_in(cluster, "words-state-0", new)
    assert not gets_in(cluster, "words-state-0", SHARED)


def test_no_password_is_shown_by_what_is_planned_or_seen():
    cluster = by_an_older_operator()
    observed, at = cluster.observed(), moment(cluster.now)
    (fill,) = plan(observed, SETTINGS, at).actions
    assert isinstance(fill, FillSecret)
    texts = {SHARED, "k" * 48, "r" * 48, *(word for v in fill.data.values() for word in v.split())}
    shown = f"{observed!r} {at!r} {fill!r}"
    assert [text for text in texts - {"acker", "default"} if text in shown] == []
