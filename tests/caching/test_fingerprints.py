"""Fingerprints of drivers: an edited driver counts as another."""

from __future__ import annotations

from nnadapter.store import keys


def test_driver_fingerprint_changes_only_with_its_files(tmp_path, monkeypatch):
    file = tmp_path / "driver.py"
    monkeypatch.setattr(keys, "driver_files", lambda device: [file, tmp_path / "gone.py"])
    found = []
    for text in ("a = 1", "a = 1 + 1", "a = 2 + 1"):
        file.write_text(text)
        found.append(keys.of_device("trial")["driver"])
        with monkeypatch.context() as patch:
            patch.setattr("pathlib.Path.read_bytes", None)
            assert keys.of_device("trial")["driver"] == found[-1]
    assert len({str(each) for each in found}) == 3
