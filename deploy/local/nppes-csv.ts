import { LAYOUT, type MemberKind } from '../nppes/layout.ts';

/** Values by the names of their columns; the others are empty. */
export type NppesValues = Readonly<Record<string, string>>;

const PLACES: Readonly<Record<MemberKind, ReadonlyMap<string, number>>> = {
  npidata: placesOf('npidata'),
  othername: placesOf('othername'),
  pl: placesOf('pl'),
  endpoint: placesOf('endpoint'),
};

/** The header of a file as CMS writes it. */
export function headerLine(kind: MemberKind): string {
  return line(LAYOUT[kind]);
}

/**
 * A row as CMS writes it: every value quoted, a quote within it written as an apostrophe.
 * @throws {RangeError} for a column that the layout does not have
 */
export function rowLine(kind: MemberKind, values: NppesValues): string {
  const cells = new Array<string>(LAYOUT[kind].length).fill('');
  for (const [name, value] of Object.entries(values)) {
    const place = PLACES[kind].get(name);
    if (place === undefined) throw new RangeError(`${kind} has no column ${name}`);
    cells[place] = value.replaceAll('"', "'");
  }
  return line(cells);
}

function line(cells: readonly string[]): string {
  return `"${cells.join('","')}"\n`;
}

function placesOf(kind: MemberKind): Map<string, number> {
  return new Map(LAYOUT[kind].map((name, index) => [name, index]));
}
