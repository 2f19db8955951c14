"""Tells a user's mistake from a bug, and puts the mistake in one sentence."""

import errno
import os
import re

from fairseq_residuals_errors import UserError

# What fairseq itself says about a user's mistake, and what is said instead ({0} is the message, {1} its
# first group).
_MESSAGES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], str, str], ...] = (
    (FileNotFoundError, r"Dataset not found: .*", "{0}; fairseq-preprocess makes data sets"),
    (Exception, r"Cannot find dataset: (.*)", "there is no data set {1}; fairseq-preprocess makes data sets"),
    (
        Exception,
        r"Could not infer language pair.*",
        "the data folder has no data set of a language pair, <split>.<source>-<target>.<language>.bin and .idx:"
        " fairseq-preprocess makes one",
    ),
    (FileExistsError, r"(\S*dict\.\S*txt)", "{1} exists already: remove it or choose another --destdir"),
    (OSError, r"Model file not found: (.*)", "there is no checkpoint {1}"),
    (
        ModuleNotFoundError,
        r"No module named '(matplotlib|scipy|subword_nmt)\b.*",
        "this needs the package {1}: `pip install {1}`, or the extra fairseq, which has what all commands need",
    ),
    (
        KeyError,
        r"'best'",
        "the checkpoint was trained with another --lr-scheduler, which keeps another state: name the checkpoint's, or"
        " begin the schedule anew by --reset-lr-scheduler",
    ),
    (ValueError, r"optimizer is required!", "--optimizer is missing: name one, such as adam"),
    (
        FloatingPointError,
        r"gradients are Nan/Inf|Minimum loss scale reached .*",
        "training diverged: {0}; `fairseq-residuals diagnose LOG` says where it began",
    ),
    (
        RuntimeError,
        r"(?s)(?:.*DefaultCPUAllocator: .*you tried|CUDA out of memory\. Tried) to allocate ([\d.]+ \w+).*",
        "memory is used up: there were no {1} left; smaller models and smaller batches need less",
    ),
    (
        RuntimeError,
        r"(?s)Expected to have finished reduction in the prior iteration.*",
        "some parameters had no gradient in an update, as those of layers that --encoder-layerdrop or"
        " --decoder-layerdrop leaves out: give --find-unused-parameters, or --ddp-backend legacy_ddp",
    ),
    (Exception, r"Incorrect encoding detected in (.*), please rebuild the dataset", "{1} is not UTF-8"),
    # sentences that say enough; fairseq asserts what its options have to satisfy, in messages that name them
    ((AssertionError, ValueError), r"(.*[\s(])?--[a-z][-a-z0-9]+\b.*", "{0}"),
    (OSError, r".* not found.*", "{0}"),
    (
        Exception,
        r"(?s)(Failed to import --user-dir=|Size of sample #\d+ is invalid|Sentences lengths should not exceed"
        r"|Incorrect dictionary format|Duplicate word found when loading Dictionary"
        r"|System output file|Reference file).*",
        "{0}",
    ),
)


# What keeps a disk from being written, whichever program asks.
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO)


def disk_error(error: BaseException) -> OSError | None:
    """Return why a disk could not be written, or None where ``error`` is about something else.

    torch.save says that it is at an "unexpected pos" while it handles what the system said.
    """
    if isinstance(error, RuntimeError) and "unexpected pos" in str(error) and error.__context__ is not None:
        error = error.__context__
    return error if isinstance(error, OSError) and error.errno in _DISK else None


# What is wrong with a path, whichever program asks.
_PATH_ERRORS = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError)


def explain(error: BaseException) -> UserError | None:
    """Return the sentence for a user's mistake, or None for anything else, which is to keep its traceback."""
    if isinstance(error, UserError):
        return error
    for kind, pattern, sentence in _MESSAGES:
        found = re.fullmatch(pattern, str(error)) if isinstance(error, kind) else None
        if found:
            return UserError(sentence.format(found[0], *found.groups()))
    missing = re.match(r"Missing mandatory value: (?:\w+\.)*(\w+)", str(error))
    if missing:
        return UserError(f"{missing[1]} is missing: give --{missing[1].replace('_', '-')}, or {missing[1]} in YAML")
    if isinstance(error, _PATH_ERRORS):
        return _explain_path(error)
    reason = disk_error(error)
    if reason is not None and (reason.filename is not None or not isinstance(reason, PermissionError)):
        return UserError(f"{reason.filename or 'what is to be written cannot be'}: {reason.strerror}")
    return None


def _explain_path(error: OSError) -> UserError | None:
    if error.filename is None:
        return UserError(f"file not found: {error}") if isinstance(error, FileNotFoundError) else None
    path = os.fspath(error.filename)
    folder, name = os.path.split(path)
    if isinstance(error, FileNotFoundError) and re.fullmatch(r"dict\..*txt", name):
        if not os.path.isdir(folder):
            return UserError(f"the data folder {folder} does not exist")
        return UserError(f"{folder} is no data folder of fairseq: it has no {name}, which fairseq-preprocess makes")
    return UserError(f"{path}: {error.strerror}")
