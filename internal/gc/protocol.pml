/*
 * The protocol of garbage collection as a model: a blob, a manifest with a tag that uses it,
 * and a referrer of the manifest; the reviews of all three, the sweeper, time, and clients
 * that push, untag and ask. "make model" has spin try every way in which their steps can
 * interleave, and then each mutation (-D NAME), a plausible wrong way that must fail.
 *
 * It proves the idea, not the SQL: what each statement locks and sees is proved by the race
 * tests beside this file. Here a read sees what is committed; a transaction's changes are
 * applied at its commit, in one atomic step that also releases its locks. A row's lock is
 * held by one process (x) or shared (s, KEY SHARE). An upsert of a queue's row locks it.
 */
#define NONE  0              /* no row in the queue */
#define DUE   1
#define LATER 2              /* granted delay; GREATEST is MAX */
#define MAX(a, b) ((a) > (b) -> (a) : (b))
#define KEYS  3              /* of the first object, and of two uploads */
#ifdef KEY_REUSED
#define NEXTKEY 0
#else
#define NEXTKEY nextkey
#endif

/* At first all is there, and due: a reviewer may begin before the clients. */
bool tag = true, man = true, referrer = true, blob = true;
byte key;                    /* under which the blob's object is stored */
bool object[KEYS] = { true, false, false };
bool doomed[KEYS];
byte nextkey;                /* the next upload's */
byte qm = DUE, qr = DUE, qb = DUE; /* review queues: manifest, referrer, blob */
bool promised;               /* a client was told that the blob exists, and the delay isn't over */
byte busy;                   /* requests in progress */

typedef row { byte x; byte s }
row Lqm, Lqr, Lqb, Lm, Lb, Lsubject, Ltag;
#define FREE(l)   (l.x == 0 && l.s == 0)
#define MINE(l)   (l.x == _pid + 1)
inline lock(l)    { atomic { FREE(l) -> l.x = _pid + 1 } }
inline share(l)   { atomic { l.x == 0 -> l.s++ } }
inline unlock(l)  { if :: MINE(l) -> l.x = 0 :: else fi }
inline unshare(l) { l.s-- }

/* What must hold after every commit. */
inline check() {
	assert(!tag || man);
	assert(!man || blob);
	assert(!blob || object[key]);
	assert(!blob || !doomed[key]);
	assert(!promised || blob)
}

/* An event's delay: none, or the full one. */
inline delay(d) { if :: d = DUE :: d = LATER fi }

active proctype ReviewManifest() {
	bool held; byte d;
end:	do
	:: atomic { qm == DUE && Lqm.x == 0 -> /* claim */
#ifndef CLAIM_UNLOCKED
		Lqm.x = _pid + 1
#endif
	};
	held = tag;                        /* look */
	if
	:: atomic { held -> qm = NONE; unlock(Lqm); check() }    /* settle: kept */
	:: atomic { !held && !man -> qm = NONE; unlock(Lqm) }    /* settle: gone */
	:: atomic { !held && man && !FREE(Lm) ->                 /* locked: due again soon */
#ifdef LOCKED_IS_GONE
		qm = NONE;
#endif
		unlock(Lqm) }
	:: atomic { !held && man && FREE(Lm) -> Lm.x = _pid + 1 };
#ifndef NO_SECOND_LOOK
		held = tag;                    /* look again, under the lock */
#endif
		if
		:: atomic { held -> qm = NONE; unlock(Lqm); unlock(Lm); check() }
		:: else ->                     /* delete; the trigger queues blob and referrer */
			delay(d);
			if
			:: atomic { FREE(Lqb) && FREE(Lqr) -> Lqb.x = _pid + 1; Lqr.x = _pid + 1 };
				atomic { man = false; qm = NONE; qr = (referrer -> MAX(qr, d) : qr);
#ifdef NO_GREATEST
					qb = d;
#else
					qb = MAX(qb, d);
#endif
					unlock(Lqm); unlock(Lm); unlock(Lqb); unlock(Lqr); check() }
			:: atomic { !(FREE(Lqb) && FREE(Lqr)) -> unlock(Lqm); unlock(Lm) } /* lock_timeout: roll back */
			fi
		fi
	fi
	od
}

/* A referrer goes when its subject, the manifest, doesn't exist. */
active proctype ReviewReferrer() {
	bool held;
end:	do
	:: atomic { qr == DUE && Lqr.x == 0 -> Lqr.x = _pid + 1 };
	if
	:: atomic { man || !referrer -> qr = NONE; unlock(Lqr) }
	:: else ->
#ifndef NO_SUBJECT_LOCK
		if
		:: atomic { Lsubject.x == 0 -> Lsubject.s++ };
#endif
			held = man;                /* look again, under the subject's lock */
			atomic {
				if
				:: held -> qr = NONE
				:: else -> assert(!man); referrer = false; qr = NONE
				fi;
#ifndef NO_SUBJECT_LOCK
				unshare(Lsubject);
#endif
				unlock(Lqr) }
#ifndef NO_SUBJECT_LOCK
		:: atomic { Lsubject.x != 0 -> unlock(Lqr) } /* it is being put: due again soon */
		fi
#endif
	fi
	od
}

active proctype ReviewBlob() {
	bool held;
end:	do
	:: atomic { qb == DUE && Lqb.x == 0 -> Lqb.x = _pid + 1 };
	held = man;
	if
	:: atomic { held -> qb = NONE; unlock(Lqb) }
	:: atomic { !held && !blob -> qb = NONE; unlock(Lqb) }
	:: atomic { !held && blob && !FREE(Lb) -> unlock(Lqb) }
	:: atomic { !held && blob && FREE(Lb) -> Lb.x = _pid + 1 };
#ifndef NO_SECOND_BLOB_LOOK
		held = man;
#endif
		if
		:: atomic { held -> qb = NONE; unlock(Lqb); unlock(Lb); check() }
		:: else ->
#ifdef OBJECT_FIRST
			atomic { object[key] = false; check() };
#endif
			atomic { blob = false; qb = NONE;
#ifndef DOOM_LATER
				doomed[key] = true;
#endif
				unlock(Lqb); unlock(Lb); check() }
#ifdef DOOM_LATER
			if :: doomed[key] = true :: skip /* the process dies before it */ fi
#endif
		fi
	fi
	od
}

active proctype Sweeper() {
	byte k;
end:	do
	:: atomic { doomed[0] -> k = 0 }; goto sweep
	:: atomic { doomed[1] -> k = 1 }; goto sweep
	:: atomic { doomed[2] -> k = 2 };
sweep:
#ifdef FORGET_FIRST
	doomed[k] = false;
	if :: skip :: goto end /* it dies */ fi;
#endif
	atomic { object[k] = false; check() };
	doomed[k] = false
	od
}

/* The delay passes when no request is in progress: no request takes as long. */
active proctype Time() {
end:	do
	:: atomic { busy == 0 && (qm == LATER || qr == LATER || qb == LATER || promised) ->
		promised = false;
		if :: qm == LATER -> qm = DUE :: else fi;
		if :: qr == LATER -> qr = DUE :: else fi;
		if :: qb == LATER -> qb = DUE :: else fi }
	od
}

/* Promise that the blob exists, then look whether it does. */
inline ask(found) {
#ifdef LOOK_BEFORE_PROMISE
	found = blob;
#endif
#ifdef PROMISE_ONLY_QUEUED
	if :: qb != NONE -> lock(Lqb); atomic { if :: qb != NONE -> qb = LATER :: else fi; unlock(Lqb) } :: else fi;
#else
	lock(Lqb);
	atomic { qb = LATER; unlock(Lqb) };
#endif
#ifndef LOOK_BEFORE_PROMISE
	found = blob;
#endif
	atomic { if :: found -> promised = true :: else fi }
}

/* A client asks for the blob, uploads it if it isn't there, and puts the manifest with a tag. */
proctype Push() {
	bool found; byte k, tries;
again:	if :: tries == 2 -> goto done :: else -> tries++ fi;
	atomic { busy++ };
	if
	:: ask(found); check()
	:: found = true                    /* it knows the blob from long ago, and doesn't ask */
	fi;
	if
	:: found
	:: else ->
		atomic { nextkey++; k = NEXTKEY };
		object[k] = true;
		lock(Lqb);
		lock(Lb);
		atomic {
			if
			:: blob -> if :: k != key -> doomed[k] = true :: else fi /* another was first */
			:: else -> blob = true; key = k
			fi;
			qb = LATER; unlock(Lqb); unlock(Lb); check() }
	fi;
#ifndef PUT_LOCKS_NO_BLOB
	share(Lb);
#endif
	found = blob;                      /* a statement that begins after the lock */
	lock(Lsubject); lock(Ltag); lock(Lm);
	atomic {
		if
		:: found                   /* the client is killed, and the transaction rolled back */
		:: found ->
#ifdef PUT_LOCKS_NO_BLOB
			man = true; tag = true;
#else
			if :: blob -> man = true; tag = true :: else fi;
#endif
			if :: Lqm.x == 0 -> qm = NONE :: else fi /* SKIP LOCKED */
		:: else
		fi;
#ifndef PUT_LOCKS_NO_BLOB
		unshare(Lb);
#endif
		unlock(Lsubject); unlock(Ltag); unlock(Lm); check(); busy-- };
	if :: found :: else -> goto again fi;
done:	skip
}

/* A client deletes the tag. The trigger queues the manifest. */
proctype Untag() {
	byte d;
	busy++;
	lock(Ltag);
	if
	:: tag ->
		delay(d);
#ifdef DO_NOTHING
		atomic { tag = false; if :: qm == NONE -> qm = d :: else fi; unlock(Ltag); busy-- }
#else
		lock(Lqm);
		atomic { tag = false; qm = MAX(qm, d); unlock(Ltag); unlock(Lqm); check(); busy-- }
#endif
	:: else -> atomic { unlock(Ltag); busy-- }
	fi
}

proctype Head() { bool found; busy++; ask(found); check(); busy-- }

init {
	atomic { run Push(); run Untag(); run Head() };
	/* At rest the queues are empty, and nothing is left that no tag holds. */
	timeout ->
	assert(qm == NONE && qr == NONE && qb == NONE && busy == 0);
	assert(man == tag && blob == man && (!referrer || man));
	assert(object[0] == (blob && key == 0));
	assert(object[1] == (blob && key == 1));
	assert(object[2] == (blob && key == 2))
}
