import type { SuppressionTarget } from '../../db/privacy/suppressions.ts';
import type { Judged, Reading, Row } from './row-import.ts';
import { guessWord, parseTarget, TARGET_WORDS, type TargetWord } from './suppression-target.ts';

type Suppressed = SuppressionTarget & { readonly reason: string };

const REFUSALS: Readonly<Record<TargetWord, string>> = {
  npi: 'not_an_npi',
  sha256: 'not_a_hash',
  email: 'not_an_address',
  domain: 'not_a_domain',
};

/** Rows of a list of people who want to be left alone: with a header that has `value`, or one value a line. */
export function readSuppressionRows(first: Row): Reading<Suppressed> {
  const names = first.cells.map((cell) => cell.toLowerCase());
  const hasHeader = names.includes('value');
  const columns = hasHeader ? names : ['value'];
  return {
    hasHeader,
    judge({ cells }) {
      const cell = (column: string) => cells[columns.indexOf(column)] ?? '';
      return cells.length === 0
        ? { verdict: 'broken_row' }
        : judge(cell('kind'), cell('value'), cell('reason'));
    },
  };
}

function judge(kind: string, value: string, reason: string): Judged<Suppressed> {
  const word = kind === '' ? guessWord(value) : TARGET_WORDS.find((one) => one === kind.toLowerCase());
  if (word === undefined) return { verdict: 'unknown_kind' };
  const target = parseTarget(word, value);
  if (target === null) return { verdict: REFUSALS[word] };
  // The list itself holds nobody, so a reason that names an address is not kept.
  return { store: { ...target, reason: reason.includes('@') ? '' : reason } };
}
