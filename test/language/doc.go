// SPDX-License-Identifier: Apache-2.0

// Package language checks the project's language: documentation, comments, log lines, errors and identifiers use the field's
// standard terms and plain sentences. words.txt lists the words and sentence forms that are rejected, each with the words to
// use instead. `make check` runs it.
package language
