"""Who works and who pauses: keeps the rhythm of every caller, and plans for its next burst.

Called by ``retention`` at every turn of a bound worker's life. ``warming`` carries the plans out.
"""

from __future__ import annotations

from firepool_ray.core.model import Caller
from firepool_ray.core.rhythm import Rhythm
from firepool_ray.core.state import Lane, Pool, Profile, Worker

#: Callers whose rhythm is known, per profile.
REMEMBERED = 4096


def works(pool: Pool, worker: Worker, at: float) -> None:
    """The worker begins to work, or is on its way to somebody who waits."""
    assert worker.key is not None
    rhythm = _rhythm(pool, worker)
    rhythm.key, rhythm.client = worker.key, worker.client
    if not worker.counted:
        worker.counted = True
        rhythm.busy += 1
    if rhythm.quiet_since is not None:
        paused = rhythm.awake(max(at, rhythm.quiet_since), rhythm.held_s)
        if paused is None:  # its own idle workers were still there
            forget_plan(pool, worker.lane.profile, rhythm)
        else:
            end(pool, worker.lane.profile, rhythm, at)
    rhythm.works(rhythm.busy)


def rests(pool: Pool, worker: Worker, at: float) -> None:
    _stop(pool, worker, at)


def started(pool: Pool, worker: Worker, took_s: float) -> None:
    """Its caller has waited so long for a worker, since none of its own was warm."""
    worker.lane.profile.costs.restart.add(took_s)
    _rhythm(pool, worker).restart.add(took_s)


def is_held(profile: Profile, caller: Caller, hold_s: float) -> None:
    """Its keep-alive holds an idle worker of the caller for so long: what lasts longer is a pause.

    A start that waits longer than the hold is what a pause costs; bridged ones are pauses too.
    """
    rhythm = profile.rhythms.get(caller)
    if rhythm is not None:
        rhythm.held_s = hold_s


def is_there(worker: Worker) -> None:
    """A worker that was bound ahead is idle, in use or gone: it is no longer on its way."""
    if worker.awaited and worker.key is not None:
        worker.awaited = False
        rhythm = worker.lane.profile.rhythms.get(worker.key.caller)
        if rhythm is not None:
            rhythm.coming -= 1


def leaves(pool: Pool, worker: Worker, at: float) -> None:
    is_there(worker)
    _stop(pool, worker, at)


def _stop(pool: Pool, worker: Worker, at: float) -> None:
    if not worker.counted or worker.key is None:
        return
    worker.counted = False
    profile = worker.lane.profile
    rhythm = profile.rhythms.get(worker.key.caller)
    if rhythm is None:
        return
    rhythm.busy -= 1
    if rhythm.busy == 0:
        rhythm.quiet_since = at
        _plan(pool, profile, rhythm, at)


def _rhythm(pool: Pool, worker: Worker) -> Rhythm:
    assert worker.key is not None
    caller, rhythms = worker.key.caller, worker.lane.profile.rhythms
    rhythm = rhythms.get(caller)
    if rhythm is None:
        restart_s = worker.lane.profile.costs.restart.value
        rhythm = rhythms[caller] = Rhythm(f"{worker.key.profile} {caller}", worker.key, restart_s)
        if len(rhythms) > REMEMBERED:
            _forget_one(pool, worker.lane.profile)
    return rhythm


def _forget_one(pool: Pool, profile: Profile) -> None:
    """The one known for longest, of those that neither work nor are being warmed for."""
    for caller, rhythm in profile.rhythms.items():
        if not rhythm.busy and not rhythm.due and not rhythm.coming:
            forget_plan(pool, profile, rhythm)
            del profile.rhythms[caller]
            return


# ---------------------------------------------------------------- the plan


def _plan(pool: Pool, profile: Profile, rhythm: Rhythm, at: float) -> None:
    """The caller pauses: tell its next burst, and be ready for it if such predictions pay.

    One that is not followed is made all the same, to see whether it comes true.
    """
    if not profile.warms or not rhythm.predict(profile.costs.cold_s):
        return
    pool.rhythms[rhythm.id] = (profile, rhythm)
    # A burst is seen when its first worker is bound, which may take longer than usual.
    when = rhythm.until + profile.costs.cold_s
    begin = rhythm.earliest - profile.costs.cold_s - profile.promote_cost_s
    # Where there is no time to let go in between, ``bridge_s`` has held what is worth holding.
    if begin >= at and rhythm.pays(profile.gain_s.value):
        when = begin
    pool.agenda.set(("warm", rhythm.id), when)


def end(pool: Pool, profile: Profile, rhythm: Rhythm, at: float | None) -> None:
    """The burst begins now, or did not come (None): nothing more is warmed."""
    if rhythm.told:
        profile.gain_s.add(rhythm.judge(at, profile.costs.cold_s))
    forget_plan(pool, profile, rhythm)


def meant_for(profile: Profile, lane: Lane, rhythm_id: str) -> None:
    """The lane grows, or its worker starts, for that rhythm's burst; "" for nobody's any more."""
    profile.ahead += bool(rhythm_id) - bool(lane.ahead)
    lane.ahead = rhythm_id


def forget_plan(pool: Pool, profile: Profile, rhythm: Rhythm) -> None:
    if rhythm.due:
        for lane in profile.lanes.values():  # what comes is for whoever waits
            if lane.ahead == rhythm.id:
                meant_for(profile, lane, "")
    rhythm.due = rhythm.told = False
    if pool.rhythms.pop(rhythm.id, None) is not None:
        pool.agenda.cancel(("warm", rhythm.id))
    profile.warming.pop(rhythm.id, None)
    if not profile.warming:
        profile.short = 0


def bridge_s(profile: Profile, caller: Caller) -> float:
    """How long a worker that rests should at least be held for the caller's next burst."""
    rhythm = profile.rhythms.get(caller)
    if rhythm is None or not profile.warms or not rhythm.pays(profile.gain_s.value):
        return 0.0
    return rhythm.bridge_s(profile.costs.cold_s, rhythm.restart.value)


def held_until(pool: Pool, worker: Worker) -> float:
    """A warmed worker waits for the burst that it was warmed for, and no longer."""
    assert worker.key is not None
    rhythm = worker.lane.profile.rhythms.get(worker.key.caller)
    return rhythm.until if rhythm is not None and rhythm.due else worker.since


def standing_burst(pool: Pool, queue: str, gpu_type: str) -> float:
    """Units still to be warmed for the queue's callers whose next burst is due."""
    total = 0.0
    for profile in pool.profiles.values():
        for rhythm in profile.warming.values():
            if rhythm.key.caller.queue == queue and profile.gpu_type == gpu_type:
                there = len(pool.warm.get(rhythm.key, ()))
                total += max(0, rhythm.workers - there) * profile.spec.unit
    return total
