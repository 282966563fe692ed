// Package remove tests that a feature can be removed: its folder, and its
// lines in the lists that name it.
package remove
