// SPDX-License-Identifier: Apache-2.0

// Package language checks the project's language. Documentation, comments, log lines, errors and
// identifiers use the field's standard terms: words.txt lists the words and sentence forms that are
// rejected, each with the words to use instead.
//
// Sentences in Markdown and in the comments of Go code outside tests have at most 25 words, and
// repeat a noun in place of a back-reference (sentences.go). `make check` runs both checks.
package language
