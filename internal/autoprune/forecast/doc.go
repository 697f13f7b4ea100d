// Package forecast says what policies would have deleted over the last days, if a run had taken place
// once a day, and what would be stored now with other ages, numbers or sizes.
//
// The audit log says what clients did with each tag (history.go). The forecast plays the days: on each
// day it judges the tags that exist then, by [judge.Evaluate] as a run does, and what this deletes is
// missing on later days (days.go). Each manifest that tags of now need is gone since some day, or
// still stored; so are the blobs that it keeps (bytes.go). A blob is counted once, in whichever
// repositories of the namespace it is.
//
// The past doesn't tell everything, such as uses before the last one, or the content of manifests that are
// gone. A tag stays in the forecast if something isn't known of it, and [Forecast.Notes] names that.
package forecast
