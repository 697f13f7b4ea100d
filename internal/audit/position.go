package audit

import "strconv"

// Position is a place in the order in which Log.Pulls, Changes and CountPulls read entries: by the id
// of the writing transaction, then by the entry's id. A reader whose position is p has read
// all entries up to and including p.
type Position struct {
	XID uint64 // of the transaction that wrote the entry
	ID  int64  // of the entry
}

const maxID = 1<<63 - 1

// End is a position after every entry that can ever exist: a reader that starts there
// finds nothing.
var End = Position{XID: maxID, ID: maxID}

// PositionOf returns the position that a query has read as the text of a transaction id, because the
// driver has no type for xid8, and an entry's id. It returns an error if the text is no number.
func PositionOf(xid string, id int64) (p Position, err error) {
	p.ID = id
	p.XID, err = strconv.ParseUint(xid, 10, 64)
	return p, err
}

// Arguments returns the position as two arguments of a statement: the transaction id, as
// text like that of PositionOf, and the entry's id.
func (p Position) Arguments() (xid string, id int64) { return strconv.FormatUint(p.XID, 10), p.ID }

// Less says whether p comes before other.
func (p Position) Less(other Position) bool {
	return p.XID < other.XID || p.XID == other.XID && p.ID < other.ID
}
