import { createRequire } from 'node:module';
import reserved from 'reserved-email-addresses-list' with { type: 'json' };
import admins from 'reserved-email-addresses-list/admin-list.json' with { type: 'json' };
import noReply from 'reserved-email-addresses-list/no-reply-list.json' with {
  type: 'json',
};
import { readList } from '../../activities/verification/domains.ts';

// The package has no types.
const roleBased: readonly string[] = createRequire(import.meta.url)(
  'role-based-email-addresses',
);

/** The shortest word that we take from a package. Shorter ones, such as `sdr`, are often initials. */
const MIN_LENGTH = 4;

/** A misspelled `info` in a package. As a role, it would make `informatics` a shared mailbox. */
const MISSPELLED = 'infor';

/**
 * Returns the words for roles that the packages list, without separators. Names of people are
 * dropped, because a local part such as `may` or `dean` can be a person's name.
 */
export function buildRoles(): readonly string[] {
  const dropped = readList('given-names', 'surnames', 'titles');
  const words = [...roleBased, ...reserved, ...admins, ...noReply]
    .map((word) => word.toLowerCase().replaceAll(/[._-]/g, ''))
    // The packages also list spellings with lookalike letters, which an address cannot contain.
    .filter((word) => /^[a-z]+$/.test(word) && word.length >= MIN_LENGTH)
    .filter((word) => !dropped.has(word) && word !== MISSPELLED);
  return [...new Set(words)].sort();
}
