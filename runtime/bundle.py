"""Bundle: a folder with a manifest, graphs and arrays, opened and checked before anything is run.

Reads and checks; writes nothing and runs no graph (:mod:`vvs.runtime.backends` opens engines on a bundle).
Every failure is one BundleError sentence.
"""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from vvs.codebook import Codebook
from vvs.errors import BundleError, SettingsError
from vvs.manifest import (
    CODEBOOK_LATENTS,
    CODEBOOK_NEAREST,
    MANIFEST_FILE,
    TOKEN_EMBEDDINGS,
    TOKENIZER_FILE,
    FileSpec,
    Manifest,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HASH_CHUNK = 1 << 20


@dataclass(frozen=True)
class Bundle:
    """A bundle whose manifest and files have been checked. Arrays are mapped when first asked for."""

    path: Path
    manifest: Manifest

    @classmethod
    def open(cls, path: str | Path, *, verify: bool = True) -> "Bundle":
        """Read the manifest and check that every file is there and is the one that was exported.

        Args:
            path: the bundle's folder.
            verify: also compare the SHA-256 of every file, which reads all of it; sizes are compared anyway.

        Raises:
            BundleError: not a bundle, damaged, changed, or of another schema.

        """
        path = Path(path)
        manifest = read_manifest(path)
        bundle = cls(path, manifest)
        bundle._require_arrays()
        for name, spec in manifest.files.items():
            _check_file(path, name, spec, verify=verify)
        return bundle

    def _require_arrays(self) -> None:
        needed = [CODEBOOK_LATENTS, CODEBOOK_NEAREST, TOKEN_EMBEDDINGS]
        if self.manifest.conditioning.needs_tokenizer:
            needed.append(TOKENIZER_FILE)
        for name in needed:
            if name not in self.manifest.files:
                raise BundleError(f"{self.path}: the manifest lists no file {name!r}, which every run needs")

    def file(self, name: str) -> Path:
        """Where a file of the manifest lies."""
        return self.path / name

    @cached_property
    def codebook(self) -> Codebook:
        """Latents and nearest codes of all image tokens."""
        try:
            codebook = Codebook(self._array(CODEBOOK_LATENTS), self._array(CODEBOOK_NEAREST))
        except SettingsError as error:
            raise BundleError(f"{self.path}: {error}") from error
        geometry = self.manifest.geometry
        wanted = (geometry.vocabulary, geometry.code_dim)
        if codebook.latents.shape != wanted:
            raise BundleError(
                f"{self.file(CODEBOOK_LATENTS)} has shape {codebook.latents.shape}, "
                f"but the manifest's geometry makes it {wanted}"
            )
        return codebook

    @cached_property
    def token_embeddings(self) -> NDArray[Any]:
        """Embeddings of the image tokens ``[V, D]``, in the dtype of the target's ``embeds``."""
        embeddings = self._array(TOKEN_EMBEDDINGS)
        geometry = self.manifest.geometry
        wanted = (geometry.vocabulary, geometry.hidden)
        if embeddings.shape != wanted:
            raise BundleError(
                f"{self.file(TOKEN_EMBEDDINGS)} has shape {embeddings.shape}, "
                f"but the manifest's geometry makes it {wanted}"
            )
        return embeddings

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """Words to ids, for a model that is prompted with words."""
        from tokenizers import Tokenizer

        file = self.file(TOKENIZER_FILE)
        try:
            return Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception
            raise BundleError(f"{file} is not a tokenizer that can be read: {error}") from error

    def _array(self, name: str) -> NDArray[Any]:
        try:
            array: NDArray[Any] = np.load(self.file(name), mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError, OSError, BadZipFile) as error:
            raise BundleError(f"{self.file(name)} is not an array that can be read: {error}") from error
        return array


def read_manifest(path: Path) -> Manifest:
    """Read a bundle's manifest without looking at its other files."""
    if not path.exists():
        raise BundleError(f"there is no bundle at {path}; `vvs export` makes one from a recipe")
    file = path / MANIFEST_FILE
    if not file.is_file():
        raise BundleError(f"{path} is not a bundle: it has no {MANIFEST_FILE}")
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise BundleError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise BundleError(f"{file} holds a {type(data).__name__}, but a manifest is a JSON object")
    try:
        return Manifest.from_dict(data)
    except BundleError as error:
        raise BundleError(f"{file}: {error}") from error


def _check_file(path: Path, name: str, spec: FileSpec, *, verify: bool) -> None:
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise BundleError(f"{path}: the manifest lists {name!r}, which lies outside the bundle")
    file = path / name
    if not file.is_file():
        raise BundleError(f"{path} is incomplete: the file {name!r} is missing; export the bundle again")
    size = file.stat().st_size
    if size != spec.bytes:
        raise BundleError(
            f"{file} has {size} bytes, but the manifest says {spec.bytes}; export the bundle again"
        )
    if verify and sha256_of(file) != spec.sha256:
        raise BundleError(
            f"{file} has been changed or damaged: its SHA-256 is not the manifest's; export the bundle again"
        )


def sha256_of(file: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(HASH_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
