/** Decides whether one letter may be typed for another. `before` is the letter typed before it. */
type MayReplace = (typed: string, meant: string, before: string) => boolean;

/**
 * Returns true if at most `edits` changes turn one text into the other. A change adds, removes, or
 * replaces a letter, or swaps two neighbors.
 * @param mayReplace the letters that may be replaced; all by default
 */
export function isWithinEdits(
  typed: string,
  meant: string,
  edits: number,
  mayReplace: MayReplace = () => true,
): boolean {
  if (typed === meant) return true;
  if (edits === 0 || Math.abs(typed.length - meant.length) > edits) {
    return false;
  }
  let same = 0;
  while (typed[same] === meant[same]) same += 1;
  const [one = '', two = ''] = typed.slice(same);
  const [first = '', second = ''] = meant.slice(same);
  const rest = (typedTo: number, meantTo: number) =>
    isWithinEdits(
      typed.slice(same + typedTo),
      meant.slice(same + meantTo),
      edits - 1,
      mayReplace,
    );
  // An extra letter, or a missing one.
  if (rest(1, 0) || rest(0, 1)) return true;
  const isReplaced = mayReplace(one, first, typed.charAt(same - 1));
  if (isReplaced && rest(1, 1)) return true;
  const isSwapped = one === second && two === first;
  return isSwapped && rest(2, 2);
}
