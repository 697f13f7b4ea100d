// Package warnings finds what a policy surely wasn't meant to do, by the tags that there are.
//
// [Finder.OfChange] judges a change of policies before it is made, for a client that then confirms
// what was found. [Finder.BeforeDeletion] judges a policy before it deletes its first tag of a
// namespace, since nobody has confirmed anything of a policy of the configuration, and since tags may
// have come that a policy wasn't meant for.
//
// A change may also let other policies delete what the changed one kept from them. For that, each
// repository is judged twice in one snapshot, by the policies before and after the change
// (uncovers.go).
//
// A judgement takes a few seconds at most. It says so if it hasn't looked at everything by then
// ([policy.NotAllJudged]).
package warnings
