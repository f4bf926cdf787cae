import type { Database } from '../../db/connection/client.ts';
import {
  importSuppressions,
  type SuppressionTarget,
} from '../../db/privacy/suppressions.ts';
import { guessWord, isFreeMailTarget, TARGETS, type TargetWord } from './privacy.ts';
import type { RowImport } from './rows.ts';

// The rules of `import suppressions`.

type Suppressed = SuppressionTarget & { readonly reason: string };

const SUPPRESSIONS_HEADER =
  'one of the first 30 rows must be a header with the name value, or each line must be one value';

const REFUSALS: Readonly<Record<TargetWord, string>> = {
  npi: 'not_an_npi',
  sha256: 'not_a_hash',
  email: 'not_an_address',
  domain: 'not_a_domain',
};

/**
 * Returns the rules for importing a list of people who object to lookups. The file has either a
 * header with `value`, or one value per line.
 * @param yes true if free-mail domains are also suppressed
 */
export function suppressionRows(db: Database, yes: boolean): RowImport<Suppressed> {
  const unconfirmed = new Set<string>();
  return {
    unconfirmed,
    columns: ['value'],
    others: ['kind', 'reason'],
    header: ['value'],
    accepted: ['added', 'already_there'],
    // Without a header, only a file with one column is accepted. If there are several columns, the
    // first one could contain anything, such as domains that must not be suppressed.
    refuses: (cells) => (cells.length === 1 ? null : SUPPRESSIONS_HEADER),
    judge(cell) {
      const kind = cell('kind').toLowerCase();
      const value = cell('value');
      const reason = cell('reason').replace(/\p{C}+/gu, ' ');
      const word = kind === '' ? guessWord(value) : (kind as TargetWord);
      if (!Object.hasOwn(TARGETS, word)) {
        return 'unknown_kind';
      }
      const target = TARGETS[word](value);
      if (target === null) {
        return REFUSALS[word];
      }
      if (!yes && isFreeMailTarget(target)) {
        unconfirmed.add(target.value);
        return 'free_mail';
      }
      // A reason that contains an address is left out, because the suppression list must not
      // contain personal data.
      return { ...target, reason: reason.includes('@') ? '' : reason };
    },
    async store(rows) {
      const stored = await importSuppressions(db, rows);
      return stored.map((isNew) => (isNew ? 'added' : 'already_there'));
    },
  };
}
