# ruff: noqa -- compiled: types come from the .pxd
"""Python face of the simulator: sites (named places where threads may switch), mutants, traces.

in: a loaded libactorsim (the caller of `import` loads it globally first, see tools/actor_sim/load.py). out: plain dicts and texts.
"""

from __future__ import annotations

from cython import NULL, bint, int as c_int, cast, cfunc, pointer, void
from cython.cimports.libc.stdint import int64_t, uint64_t

KINDS = ("load", "store", "cas", "add", "swap", "lock", "unlock", "wait", "wake", "clock", "yield", "sleep")
MUTATIONS = {"right": 0, "torn": 1, "forced": 2, "skipped": 3}


def sim_vary(options: pointer[sim_options_t], seed: uint64_t) -> void:
    pick: uint64_t = (seed * cast(uint64_t, 0x5851F42D4C957F2D)) >> 40
    options.seed = seed
    options.plan = SIM_PRIORITY if pick % 3 == 0 else SIM_WALK
    pick //= 3
    # From nearly every site to one in fifty.
    options.switch_in_1024 = 700 >> (pick % 6)
    pick //= 6
    options.changes = cast(c_int, 1 + pick % 6)
    pick //= 6
    options.changes_within = cast(c_int, 60 << (pick % 4))
    pick //= 4
    options.jump_in_1024 = cast(c_int, (pick % 4) * 4)
    pick //= 4
    # Every second run also switches between plain loads and stores.
    options.access_in_64k = cast(c_int, 400 << (pick // 2 % 6)) if pick % 2 else 0
    options.jump_ns = 6_000_000
    options.tick_ns = 20
    options.sites_max = 200_000


@cfunc
def _name(site: pointer[sim_site_t]) -> str:
    # __pyx_f_7flintmq_9scheduler_5actor_actor_dispatch -> actor.actor_dispatch
    text: str = site.function.decode()
    parts: list = []
    rest: str = text.partition("_7flintmq_")[2]
    while rest:
        digits = ""
        while rest[:1].isdigit():
            digits += rest[0]
            rest = rest[1:]
        if not digits:
            parts.append(rest)
            break
        parts.append(rest[: int(digits)])
        rest = rest[int(digits) + 1 :]
    return ".".join(parts[1:] or [text])


def sites() -> list:
    """All sites used so far: {"id": "module.function:kind:line", "function", "kind", "line", "passed", "left"}."""
    found: list = []
    site: pointer[sim_site_t] = sim_sites()
    while site != NULL:
        name = _name(site)
        found.append(
            {
                "id": f"{name}:{KINDS[site.kind]}:{site.line}",
                "function": name,
                "kind": KINDS[site.kind],
                "line": site.line,
                "passed": site.passed,
                "left": site.left,
                "mutation": site.mutation,
            }
        )
        site = site.next
    return found


def mutate(site_id: str, mutation: str) -> bool:
    """Makes the operation of a site wrong ("torn", "forced", "skipped") or "right" again. False: no such site was used yet."""
    site: pointer[sim_site_t] = sim_sites()
    done: bint = False
    while site != NULL:
        if f"{_name(site)}:{KINDS[site.kind]}:{site.line}" == site_id:
            site.mutation = MUTATIONS[mutation]
            done = True
        site = site.next
    return done


def tracing(on: bool) -> None:
    """Keeps the last 4096 sites passed, from now on."""
    sim_tracing(on)


def trace(last: int = 200) -> list:
    """The last sites passed: (thread, site id, simulated time in ns)."""
    threads: c_int[4096]
    passed: pointer[sim_site_t][4096]
    times: int64_t[4096]
    count: c_int = sim_trace(threads, passed, times, min(last, 4096))
    return [(threads[i], f"{_name(passed[i])}:{KINDS[passed[i].kind]}:{passed[i].line}", times[i]) for i in range(count)]
