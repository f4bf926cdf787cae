import { TOLERANCE_SECONDS, type Verdict } from './signature-check.ts';

/** A verdict as one sentence or two for the person who writes the receiver. */
export function wordsOf(verdict: Verdict): string {
  switch (verdict.kind) {
    case 'right':
      return `the signature is right (${verdict.by})`;
    case 'missing_header':
      return `the header ${verdict.name} is missing: a proxy may have dropped it, or the request is no delivery`;
    case 'malformed_header':
      return `the header ${verdict.name} is malformed: it should be ${verdict.expected}`;
    case 'other_version':
      return verdict.present === 'v1a'
        ? 'there is no v1 signature, only v1a, which is checked with a public key and not with the secret'
        : 'there is no v1a signature, only v1, which is checked with the secret and not with a public key';
    case 'stale':
      return `the signature matches, but its timestamp is ${ageOf(verdict.ageSeconds)}; receivers accept ${TOLERANCE_SECONDS / 60} minutes to either side, so that a captured request cannot be sent again. For one that was captured earlier say when it arrived; otherwise check the clock`;
    case 'altered':
      return `the body is not the one that was signed: it ${verdict.how}`;
    case 'wrong_secret':
      return 'the secret is not the one that it was signed with; the body is as it was sent (its v1a signature matches)';
    case 'unmatched':
      return 'no signature matches. The body looks as deliveries do, so most likely the secret is not the one that it was signed with: that of another organization, or one rotated more than 24 h ago. If the secret is right, then a value in the body, the id or the timestamp was changed';
    default:
      return verdict satisfies never;
  }
}

function ageOf(seconds: number): string {
  const size = Math.abs(seconds);
  const [amount, unit] =
    size < 7200
      ? [size / 60, 'minutes']
      : size < 172_800
        ? [size / 3600, 'hours']
        : ([size / 86_400, 'days'] as const);
  return `${Math.round(amount)} ${unit} ${seconds < 0 ? 'in the future' : 'old'}`;
}
