// Preloaded into a process. Shifts its wall clock by CLOCK_STEP_MS milliseconds, like a wrong NTP
// response.

const stepMs = Number(process.env.CLOCK_STEP_MS);
const now = Date.now.bind(Date);

class SteppedDate extends Date {
  constructor(...given: ConstructorParameters<typeof Date> | []) {
    super(
      ...((given.length === 0 ? [now() + stepMs] : given) as ConstructorParameters<
        typeof Date
      >),
    );
  }
  static override now(): number {
    return now() + stepMs;
  }
}

globalThis.Date = SteppedDate as DateConstructor;
