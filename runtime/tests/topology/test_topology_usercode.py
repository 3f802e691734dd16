from __future__ import annotations

import sys

import pytest

from millrace.topology.usercode import UnusableCodeError, check_class, code_on_path, find_object


def find(folder, target):
    with code_on_path(folder):
        return find_object(target, folder)


def refusal(folder, target) -> str:
    with pytest.raises(UnusableCodeError) as caught:
        find(folder, target)
    assert caught.value.remedy
    return f"{caught.value}; {caught.value.remedy}"


def write(folder, name, text):
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_nested_modules_and_names_are_found(tmp_path):
    write(tmp_path, "pack/inner.py", "class A:\n    class B:\n        x = 1\n")
    assert find(tmp_path, "pack.inner:A.B").x == 1


def test_nothing_is_left_behind(tmp_path):
    write(tmp_path, "leftover_a.py", "import leftover_b\nvalue = leftover_b.value\n")
    write(tmp_path, "leftover_b.py", "value = 7\n")
    path, modules = list(sys.path), set(sys.modules)
    assert find(tmp_path, "leftover_a:value") == 7
    assert sys.path == path
    assert not {m for m in set(sys.modules) - modules if m.startswith("leftover")}


def test_two_folders_with_modules_of_one_name_do_not_mix(tmp_path):
    for number in (1, 2):
        write(tmp_path, f"{number}/samename.py", f"value = {number}\n")
    assert find(tmp_path / "1", "samename:value") == 1
    assert find(tmp_path / "2", "samename:value") == 2


def test_a_module_loaded_from_elsewhere_is_put_back(tmp_path, monkeypatch):
    write(tmp_path, "1/elsewhere.py", "value = 1\n")
    write(tmp_path, "2/elsewhere.py", "value = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path / "1"))
    import elsewhere

    assert find(tmp_path / "2", "elsewhere:value") == 2
    assert sys.modules["elsewhere"] is elsewhere
    assert elsewhere.value == 1
    monkeypatch.delitem(sys.modules, "elsewhere")


def test_a_module_of_the_folder_that_was_loaded_before_stays(tmp_path, monkeypatch):
    write(tmp_path, "deeper/in_use.py", "value = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path / "deeper"))
    import in_use

    with code_on_path(tmp_path):
        pass
    assert sys.modules["in_use"] is in_use
    monkeypatch.delitem(sys.modules, "in_use")


def test_an_installed_environment_inside_the_folder_is_left_alone(tmp_path):
    write(tmp_path, ".venv/lib/site-packages/installed_here.py", "value = 1\n")
    sys.path.insert(0, str(tmp_path / ".venv/lib/site-packages"))
    try:
        import installed_here

        with code_on_path(tmp_path):
            pass
        assert sys.modules["installed_here"] is installed_here
    finally:
        sys.path.pop(0)
        del sys.modules["installed_here"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ny = undefined_name\n", ["broken.py line 2: NameError", "undefined_name"]),
        ("def f(:\n", ["broken.py line 1: SyntaxError"]),
        ("import not_installed_anywhere\n", ["line 1", "install 'not_installed_anywhere'"]),
        ("import sys\nsys.exit(3)\n", ["broken.py line 2: SystemExit"]),
        ("def g():\n    raise RuntimeError('deep')\n\n\ng()\n", ["line 2: RuntimeError: deep"]),
    ],
)
def test_a_module_that_does_not_import_says_where_and_why(tmp_path, text, words):
    write(tmp_path, "broken.py", text)
    message = refusal(tmp_path, "broken:f")
    assert all(word in message for word in words), message


def test_a_missing_module_names_the_folder(tmp_path):
    assert str(tmp_path) in refusal(tmp_path, "absent_module:f")


def test_a_missing_submodule_is_no_missing_package(tmp_path):
    write(tmp_path, "pack2/__init__.py", "")
    assert "'pack2.inner'" in refusal(tmp_path, "pack2.inner:f")


def test_an_incomplete_class_names_what_it_lacks(tmp_path):
    write(
        tmp_path,
        "classes.py",
        "import abc\n\n\nclass Base(abc.ABC):\n    @abc.abstractmethod\n    def read(self): ...\n"
        "\n\nclass Half(Base):\n    pass\n\n\nclass Whole(Base):\n    def read(self): ...\n",
    )
    with pytest.raises(UnusableCodeError) as caught:
        check_class(find(tmp_path, "classes:Half"), "classes.Base")
    assert caught.value.remedy == "define read()"
    check_class(find(tmp_path, "classes:Whole"), "classes.Base")
