package judge

import (
	"cmp"
	"time"
)

// FreePlace is a tag's place in the order in which tags are deleted to free bytes. Tags without a use since
// the pull statistics began come first, in the order of their pushes, since their last use isn't known. The
// others follow in the order of their last uses.
type FreePlace struct {
	Known      bool      `json:"known"`
	At         time.Time `json:"at"` // of the last use, or of the push if that isn't known
	Repository int64     `json:"repository"`
	Name       string    `json:"name"`
}

// FreePlaceOf returns the place of a repository's tag, if statistics began at `since`.
func FreePlaceOf(repository int64, t *Tag, since time.Time) FreePlace {
	p := FreePlace{Repository: repository, Name: t.Name, At: t.LastUse(), Known: true}
	if p.At.Before(since) {
		p.Known, p.At = false, t.Created
	}
	p.At = p.At.Truncate(time.Microsecond) // as the database stores a plan's bound
	return p
}

// Compare returns a negative number if a tag at place a is deleted before one at place b, and a positive
// number if it is deleted after it.
func (a FreePlace) Compare(b FreePlace) int {
	if a.Known != b.Known {
		if b.Known {
			return -1
		}
		return 1
	}
	return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Repository, b.Repository), cmp.Compare(a.Name, b.Name))
}

// FreeBound restricts a policy that frees bytes, in one repository, to the tags up to a place.
type FreeBound struct {
	Place      FreePlace
	Since      time.Time // when statistics began, for the plan
	Repository int64
}

// beyond returns whether the bound keeps the tag.
func (b *FreeBound) beyond(t *Tag) bool {
	return b != nil && FreePlaceOf(b.Repository, t, b.Since).Compare(b.Place) > 0
}
