"""Kernels that read lists of elements page by page, in file order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from numba import njit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gloader.types import IdArray


@njit(cache=True, nogil=True)
def next_pages(
    starts: IdArray, counts: IdArray, order: IdArray, at: int, done: int, per_page: int, pages: IdArray
) -> int:
    """Write the next pages of lists, of list ``at`` those behind its first ``done`` elements; return how many.

    They ascend: a list that begins on an earlier page, as it is asked for twice, waits for the next call.

    Parameters
    ----------
    starts, counts : (M,) where lists begin, and their elements
    order : (M,) in which they lie in the file; empty: as they are
    at, done : the list to go on with, in that order, and its elements that were copied
    per_page : elements in a page
    pages : (P,) written
    """
    count = 0
    for i in range(at, starts.shape[0]):
        node = order[i] if order.shape[0] else i
        if done < counts[node]:
            page = (starts[node] + done) // per_page
            if count > 0 and page < pages[count - 1]:
                return count
            if count > 0 and page == pages[count - 1]:
                page += 1
            for wanted in range(page, (starts[node] + counts[node] - 1) // per_page + 1):
                if count == pages.shape[0]:
                    return count
                pages[count] = wanted
                count += 1
        done = 0
    return count


@njit(cache=True, nogil=True)
def copy_lists(
    starts: IdArray,
    counts: IdArray,
    order: IdArray,
    ends: IdArray,
    at: int,
    done: int,
    pages: IdArray,
    elements: NDArray[Any],
    values: NDArray[Any],
) -> tuple[int, int]:
    """Copy what ``pages`` hold of lists, from where `next_pages` began; return where it ended.

    Parameters
    ----------
    starts, counts, order, at, done : as of `next_pages`
    ends : (M,) where the elements of each list end in ``values``
    pages : (P,) ascending
    elements : (P, per page) theirs
    values : written
    """
    per_page = elements.shape[1]
    row = 0
    while at < starts.shape[0]:
        node = order[at] if order.shape[0] else at
        while done < counts[node]:
            page = (starts[node] + done) // per_page
            while row < pages.shape[0] and pages[row] < page:
                row += 1
            if row == pages.shape[0] or pages[row] != page:
                return at, done
            column = starts[node] + done - page * per_page
            out = ends[node] - counts[node] + done
            length = min(counts[node] - done, per_page - column)
            for i in range(length):
                values[out + i] = elements[row, column + i]
            done += length
        at, done = at + 1, 0
    return at, done
