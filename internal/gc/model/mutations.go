package model

// mutation is a plausible way to do something wrong.
type mutation string

// Each is a step of the protocol that is left out or done in another order.
const (
	none             mutation = ""
	objectFirst      mutation = "the object is deleted before its row"
	lockAndLook      mutation = "target locked and references looked for in one statement"
	noSecondLook     mutation = "references not looked for again under the lock"
	doNothing        mutation = "triggers insert ON CONFLICT DO NOTHING"
	noGreatest       mutation = "review_after is set without GREATEST"
	promiseIfQueued  mutation = "a promise postpones a queue row only where there is one"
	promiseReadFirst mutation = "a promise is written after it is read whether the blob exists"
	promiseInOne     mutation = "a promise is written and the blob read in one statement"
	mountNoPromise   mutation = "mount and re-upload promise nothing"
	dropUnlocked     mutation = "what couldn't be locked is taken for gone"
	goneIsLocked     mutation = "what is gone is taken for locked"
	claimUnlocked    mutation = "queue rows are claimed without a lock"
	pruneReferrer    mutation = "a put of a referrer isn't queued while its subject lives"
	subjectNotLocked mutation = "a put of a referrer doesn't lock its subject"
	noSubjectTouch   mutation = "a put of a subject leaves its referrers' queue rows alone"
	tagNoKeyShare    mutation = "a tag is put without KEY SHARE on its manifest"
	childNoKeyShare  mutation = "an index is put without KEY SHARE on its children"
	noForeignKeys    mutation = "neither locks nor foreign keys on what a manifest refers to"
	putNoLinkLock    mutation = "a put doesn't lock its links"
	linkNoLock       mutation = "unused links are looked for and deleted in one statement"
	noUnlink         mutation = "a review of blobs leaves unused links alone"
	linkBeforeQueue  mutation = "unlinking locks the link before the queue row"
	keyReused        mutation = "a storage key is used again"
	doomLater        mutation = "the object is doomed in a transaction of its own"
	forgetFirst      mutation = "a doomed object is forgotten before it is deleted"
	numberReused     mutation = "numbers of an upload's objects are used again"
	sweptOnce        mutation = "an upload's objects are swept only once"
	readOnce         mutation = "a reader doesn't look at the row again when the object is gone"
	noRerun          mutation = "a write that lost a race doesn't run again"
	noLockTimeout    mutation = "reviewers have no lock_timeout"
	noRepositoryLock mutation = "a put doesn't lock its repository"
	noPutTrigger     mutation = "a put isn't queued"
	dropLast         mutation = "rows of what is held are dropped after the deletions"
	postponeBlindly  mutation = "a reviewer that gave way puts off rows that it doesn't hold, due or not"
)
