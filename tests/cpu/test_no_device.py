"""Why there is no device: each cause that can be seen has its sentence."""

import grp
import os
import re
from pathlib import Path

import pytest

from hipgemm.runtime import rocm_host
from hipgemm.runtime.rocm_host import why_no_device

GROUP = 12345


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*rocm_host.VISIBLE, "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The files of a host with two GPUs."""
    for name in ("dev/kfd", "dev/dri/renderD128", "dev/dri/renderD129", "dev/dri/card0"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for node, gpu in enumerate(("0", "51001", "23456")):
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "gpu_id").write_text(f"{gpu}\n")
    return tmp_path


@pytest.fixture
def refuse(host: Path, monkeypatch: pytest.MonkeyPatch):
    """Refuse to open device files with this in their path, which belong to a group."""

    def refuse(
        part: str, name: str | None = "render", members: tuple[str, ...] = (), number: int = GROUP
    ) -> None:
        def group(of: int) -> grp.struct_group:
            if name is None:
                raise KeyError
            return grp.struct_group((name, "x", of, list(members)))

        stat = Path.stat
        refused = [path for path in (host / "dev").rglob("*") if part in str(path.relative_to(host))]
        monkeypatch.setattr(os, "access", lambda path, mode: path not in refused)
        monkeypatch.setattr(grp, "getgrgid", group)
        monkeypatch.setattr(os, "getuid", lambda: 1000)
        monkeypatch.setattr(os, "getgroups", lambda: [1000])
        monkeypatch.setattr(rocm_host, "_user", lambda: "ada")

        def owned(path: Path, **options: bool) -> os.stat_result:
            found = stat(path, **options)
            return os.stat_result((*found[:5], number, *found[6:])) if path in refused else found

        monkeypatch.setattr(Path, "stat", owned)

    return refuse


def test_nothing_to_be_seen(host: Path) -> None:
    assert why_no_device(host) == ""


@pytest.mark.parametrize("name", rocm_host.VISIBLE)
@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "since it is empty"),
        ("-1", "since -1 is no device"),
        ("2,0", "since the driver has 2, numbered from 0"),
        ("none", "since none is no device"),
        ("1", ""),
        ("0,7", ""),
        ("GPU-0123456789abcdef", ""),
    ],
)
def test_variables(host: Path, name: str, value: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    wanted = f"{name}={value} hides every GPU, {why}: unset or correct it" if why else ""
    assert why_no_device(host) == wanted


def test_no_module(host: Path) -> None:
    (host / "dev/kfd").unlink()
    assert why_no_device(host).startswith(
        "there is no /dev/kfd: the kernel module amdgpu is not loaded; see "
    )
    (host / "dev/kfd").touch()
    for node in (host / "dev/dri").iterdir():
        node.unlink()
    assert why_no_device(host) == (
        "there is no /dev/dri/renderD*: the kernel module amdgpu found no GPU; see dmesg"
    )


@pytest.mark.parametrize("mark", [".dockerenv", "run/.containerenv", "KUBERNETES_SERVICE_HOST"])
def test_a_container_without_devices(host: Path, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if mark.isupper():
        monkeypatch.setenv(mark, "10.0.0.1")
    else:
        (host / mark).parent.mkdir(exist_ok=True)
        (host / mark).touch()
    (host / "dev/kfd").unlink()
    assert why_no_device(host) == (
        "there is no /dev/kfd: the container was started without --device /dev/kfd --device /dev/dri"
    )
    (host / "dev/kfd").touch()
    for node in (host / "dev/dri").iterdir():
        node.unlink()
    assert why_no_device(host) == (
        "there is no /dev/dri/renderD*: the container was started without --device /dev/dri"
    )


@pytest.mark.parametrize(
    ("options", "then"),
    [
        ({}, 'group render may: sudo usermod -aG render "$USER", and log in again'),
        ({"name": "video"}, 'group video may: sudo usermod -aG video "$USER", and log in again'),
        ({"members": ("ada",)}, "group render may; it is in that group since after the login: log in again"),
        ({"name": None}, f"group number {GROUP} may: ROCm's udev rules (70-amdgpu.rules) give it to"),
        ({"name": "root", "number": 0}, "group root may: ROCm's udev rules (70-amdgpu.rules) give it to"),
    ],
)
@pytest.mark.parametrize(("part", "file"), [("dev/kfd", "/dev/kfd"), ("renderD", "/dev/dri/renderD128")])
def test_permissions(host: Path, refuse, part: str, file: str, options: dict, then: str) -> None:
    refuse(part, **options)
    assert why_no_device(host).startswith(f"this user (uid 1000) may not open {file}, which {then}")


def test_permissions_in_a_container(host: Path, refuse) -> None:
    (host / ".dockerenv").touch()
    refuse("renderD", name=None)
    assert why_no_device(host).endswith(
        f"group number {GROUP} may: start the container with --group-add {GROUP}"
    )


def test_one_gpu_of_two_is_enough(host: Path, refuse) -> None:
    refuse("renderD128")
    assert why_no_device(host) == ""


def test_all_causes(host: Path, refuse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCR_VISIBLE_DEVICES", "-1")
    refuse("dev/")
    assert len(re.findall("hides every GPU|may not open", why_no_device(host))) == 3
